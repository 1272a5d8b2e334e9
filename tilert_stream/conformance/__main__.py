"""``python -m tilert_stream.conformance``."""

from .cli import main

if __name__ == "__main__":
    main()
