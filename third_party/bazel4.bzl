"""What Bazel 4 would download before it builds anything.

Debian's Bazel is 4.2.3 and works without network once these three repositories, of which this
project uses nothing but the native rules, are local. Newer versions bring their own.
"""

def bazel4_repositories():
    """Declares local stand-ins for the repositories that Bazel 4 expects."""
    version = native.bazel_version  # Empty in Debian's build.
    if not version or version.startswith("4."):
        for name in ["remote_coverage_tools", "rules_cc", "rules_java"]:
            native.local_repository(
                name = name,
                path = "third_party/bazel4_stubs/" + name,
            )
