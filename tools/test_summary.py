"""Adds up what one `bazel test --build_event_json_file=FILE` did.

Prints a line for each failed test case, and a closing line with the counts of GoogleTest's and
pytest's cases together. A target that was not built, or left no record of cases, counts as failed.
"""

import argparse
import collections
import json
import pathlib
import sys
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator


def _cases(xml: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields (name, passed/failed/skipped) for the cases in an XML file of pytest or GoogleTest."""
    for case in ET.parse(xml).iter("testcase"):
        verdict = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            verdict = "failed"
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            verdict = "skipped"
        yield f"{case.get('classname', '')}.{case.get('name', '')}", verdict


def _results(events: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields (target and case, verdict) for all that ran, and for targets that could not."""
    for line in events.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "testResult" in event:
            target = event["id"]["testResult"]["label"]
            result = event["testResult"]
            outputs = {o["name"]: o["uri"] for o in result.get("testActionOutput", [])}
            failures = 0
            if "test.xml" in outputs:
                xml = pathlib.Path(
                    urllib.request.url2pathname(outputs["test.xml"].removeprefix("file://"))
                )
                for name, verdict in _cases(xml):
                    failures += verdict == "failed"
                    yield f"{target} {name}", verdict
            if result["status"] != "PASSED" and not failures:
                yield f"{target} ({result['status'].lower()})", "failed"
        elif event.get("testSummary", {}).get("overallStatus") in ("NO_STATUS", "FAILED_TO_BUILD"):
            yield f"{event['id']['testSummary']['label']} (not built)", "failed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=pathlib.Path)
    results = list(_results(parser.parse_args().events))
    counts = collections.Counter(verdict for _, verdict in results)
    for name, verdict in results:
        if verdict == "failed":
            print(f"FAILED {name}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
