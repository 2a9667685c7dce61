"""`python -m tfresidual` is the command `tfresidual`."""

from tfresidual_cli import main

if __name__ == "__main__":
    main()
