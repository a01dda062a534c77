"""The base of errors that are the user's to mend: a bad model folder, a setting that cannot be met.

Programs answer them with one clear line and exit code 64; every other exception is a fault of ours and keeps its
traceback.
"""

EXIT_USAGE = 64


class UsageError(Exception):
    """Something that the user asked for cannot be had. The message is one line that says what and why."""
