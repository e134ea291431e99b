"""What asks a vLLM's own parser about a command line: a program for that vLLM's own Python.

It runs `vllm serve` as its console script does, with the server's start replaced: plugins, parser
and `validate` are the target's own, wherever a version keeps them (vllm/entrypoints/cli/main.py and
serve.py). The arguments become an AsyncEngineArgs as there, JSON arguments its configs, and
ModelConfig reads the model's config.json: both need no GPU. Later checks (of memory, of the ranks)
need one, or the other nodes.
"""

from __future__ import annotations

# the line in which PROGRAM answers
ANSWER = "RIGBOOK-PARSER "
# Arguments: seconds until it ends itself, then those of `vllm`.
PROGRAM = (
    f"ANSWER = {ANSWER!r}\n"
    + """\
import argparse, json, os, resource, signal, sys, traceback

class Refused(Exception):
    pass

def refuse(parser, message):
    raise Refused(message)

def known(module, manager, flag, name, plugin):
    if not name or plugin:
        return
    try:
        there = getattr(__import__(module, fromlist=["x"]), manager).list_registered()
    except (ImportError, AttributeError):
        return
    if name not in there:
        raise Refused(f"{flag} {name}: not one of {', '.join(sorted(there))}")

def checked(args):
    found["outcome"] = "accepted"
    of = lambda name: getattr(args, name, None)
    args.model = of("model_tag") or args.model
    known("vllm.tool_parsers", "ToolParserManager", "--tool-call-parser",
          of("tool_call_parser"), of("tool_parser_plugin"))
    known("vllm.reasoning", "ReasoningParserManager", "--reasoning-parser",
          of("reasoning_parser"), of("reasoning_parser_plugin"))
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    try:
        engine = AsyncEngineArgs.from_cli_args(args)
    except ValueError as error:
        raise Refused(told(error)) from None
    if of("headless") or not os.path.exists(engine.model):
        return
    try:
        engine.create_model_config()
    except Exception as error:
        # without its GPU a platform is not known, and a refusal may be due to that
        sure = "max_model_len" in str(error) or not current_platform.is_unspecified()
        if isinstance(error, ValueError) and sure:
            raise Refused(told(error)) from None
        found["unsure"] = told(error)

def told(error):
    text = " ".join(str(error).split())[:600]
    plain = isinstance(error, (Refused, ValueError)) and text
    return text if plain else f"{type(error).__name__}: {text}"

found = {"outcome": "unchecked"}
seconds, *words = sys.argv[1:]
signal.alarm(int(seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    # whoever runs short of memory ends this first, not the engine that serves
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
argparse.ArgumentParser.error = refuse
sys.argv = ["vllm", *words]
try:
    if "--omni" in words:
        raise RuntimeError("--omni starts another server")
    from vllm import platforms
    if platforms.current_platform.is_unspecified():
        # no GPU here: its parser fails at a default, DeviceConfig, which wants the name of a device
        platforms.current_platform.device_type = "cuda"
    from vllm.entrypoints.cli import main, serve
    serve.ServeSubcommand.cmd = staticmethod(checked)
    main.main()
except Refused as error:
    found.update(outcome="refused", said=told(error))
except SystemExit as error:
    found.update(outcome="refused" if error.code == 2 else "unchecked",
                 said=f"its parser ended with {error.code}")
except BaseException as error:
    names = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    judged = isinstance(error, (ValueError, TypeError)) and names & {"parse_args", "validate"}
    outcome = "refused" if judged and "checked" not in names else "unchecked"
    found.update(outcome=outcome, said=told(error))
print(ANSWER + json.dumps(found), flush=True)
os._exit(0)
"""
)
