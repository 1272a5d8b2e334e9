"""What the server is told: options in (command line, environment, TOML file, code), one object out.

Each field of a configuration is one option. Its ``Option`` says how it is shown and which values it
takes; the command line, the environment and the file are all read by these descriptions alone, so
that an option is the same wherever it is given. A role's configuration is put together from groups
of options, so that an option is the same in every role.
"""

from .all_in_one import ServeConfig
from .decode import DecodeConfig
from .option import Option, Options, StagePlacement
from .prefill import PrefillConfig
from .router import RouterConfig

__all__ = (
    "DecodeConfig",
    "Option",
    "Options",
    "PrefillConfig",
    "RouterConfig",
    "ServeConfig",
    "StagePlacement",
)
