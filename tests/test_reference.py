"""The reference is right: its gradient against central differences of its forward pass."""

import dataclasses

import numpy as np
import pytest
from reference import ACTIVATIONS, MASKS, make_problem

STEP = 1e-5


def _check_against_central_differences(problem, rng):
    outputs = problem.forward()
    weights = [rng.standard_normal(value.shape) for value in outputs]
    grads = problem.backward(*weights)

    def loss(**changed):
        values = dataclasses.replace(problem, **changed).forward()
        return sum(np.vdot(w, v) for w, v in zip(weights, values, strict=True))

    for name, grad in grads.items():
        value = getattr(problem, name)
        direction = rng.standard_normal(value.shape)
        difference = loss(**{name: value + STEP * direction}) - loss(
            **{name: value - STEP * direction}
        )
        assert np.vdot(grad, direction) == pytest.approx(
            difference / (2 * STEP), rel=1e-6, abs=1e-7
        ), name


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_gradient_is_that_of_forward(
    rng, mask, go_backwards, return_sequences, zero_output_for_mask
):
    problem = make_problem(
        rng, mask=mask, go_backwards=go_backwards, return_sequences=return_sequences,
        zero_output_for_mask=zero_output_for_mask,
    )  # fmt: skip
    _check_against_central_differences(problem, rng)


@pytest.mark.parametrize("recurrent_activation", ACTIVATIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_of_every_activation(rng, activation, recurrent_activation):
    problem = make_problem(
        rng, mask="random", activation=activation, recurrent_activation=recurrent_activation
    )
    _check_against_central_differences(problem, rng)


def test_one_unit_by_hand():
    """One step, one unit, checked with numbers worked out by hand."""
    problem = make_problem(np.random.default_rng(0), batch=1, steps=1, input_size=1, hidden_size=1)
    problem.x[:] = 1
    problem.kernel[:] = [[0, np.log(3), 0.5, -np.log(3)]]
    problem.recurrent_kernel[:] = 0
    problem.bias[:] = 0
    problem.initial_c[:] = 0.8
    c = 0.75 * 0.8 + 0.5 * np.tanh(0.5)  # gates i = 1/2, f = 3/4, o = 1/4
    output, final_h, final_c = problem.forward()
    assert final_c == pytest.approx(c)
    assert final_h == pytest.approx(0.25 * np.tanh(c))
    assert output[:, 0] == pytest.approx(final_h)
