_arguments = None


def set_args(arguments):
    global _arguments
    _arguments = arguments


def get_args():
    return _arguments
