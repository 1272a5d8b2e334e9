"""``python -m tilert_stream.serve``."""

from .cli import main

if __name__ == "__main__":
    main()
