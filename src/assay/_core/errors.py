"""The one error that means: the input, not the program, needs changing."""


class InputError(ValueError):
    """What a user gave cannot be used as it is.

    The message is one sentence that names the place (file, row, column, argument), the value, what was expected
    and, where there is one, the way out. The command line prints it without a traceback and exits with 2.
    """
