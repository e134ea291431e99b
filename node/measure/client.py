"""What loads a vLLM with vLLM's own client: a program for the engine's own Python.

`vllm bench serve` as a module (vllm/benchmarks/serve.py): its parser, its requests, its clock. Only
the prompts are ours, because its random ones are words without sense, whose drafts are accepted at
another rate, and its files of prompts want pandas. One process makes all rounds of a point, since
importing vLLM takes 8 s. It writes nothing.
"""

from __future__ import annotations

# what the lines begin with in which PROGRAM answers
ANSWER = "RIGBOOK-BENCH "
# Arguments: seconds until it ends itself, and the job as JSON (node/measure/load.py has its keys).
PROGRAM = (
    f"ANSWER = {ANSWER!r}\n"
    + """\
import argparse, json, os, random, resource, signal, sys

def say(**row):
    print(ANSWER + json.dumps(row), flush=True)

seconds, text = sys.argv[1:]
signal.alarm(int(seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    # whoever runs short of memory ends this first, not the engine that serves
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
except OSError:
    pass
job = json.loads(text)

def words(length, seed):
    # a text of that many tokens that nobody has asked before
    tokenizer = serve.get_tokenizer(
        job["tokenizer"], tokenizer_mode=job["mode"], trust_remote_code=job["trust"])
    made = random.Random(seed)
    some = "river stone paper light garden winter letter bridge engine silver harbour music".split()
    text = seed + " " + " ".join(made.choice(some) for _ in range(length))
    ids = tokenizer.encode(text)
    while len(ids) < length:
        text += " " + " ".join(made.choice(some) for _ in range(length))
        ids = tokenizer.encode(text)
    return tokenizer.decode(ids[:length])

def share(values, part):
    ordered = sorted(values)
    return ordered[round(part * (len(ordered) - 1))] if ordered else None

def one(prompts, tokens):
    asked = [SampleRequest(prompt=p, prompt_len=1, expected_output_len=tokens) for p in prompts]
    serve.get_samples = lambda *a, **k: asked
    argv = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
            "--base-url", job["url"], "--model", job["model"], "--served-model-name", job["name"],
            "--tokenizer", job["tokenizer"], "--tokenizer-mode", job["mode"],
            "--dataset-name", "custom", "--num-prompts", str(len(prompts)),
            "--max-concurrency", str(len(prompts)), "--num-warmups", "0",
            "--ready-check-timeout-sec", "0", "--temperature", "0", "--ignore-eos",
            "--save-detailed", "--disable-tqdm"]
    if job["trust"]:
        argv.append("--trust-remote-code")
    if job["template"]:
        argv += ["--extra-body", json.dumps({"chat_template_kwargs": job["template"]})]
    made = serve.main(parser.parse_args(argv))
    errors = [text.strip().splitlines()[-1][:300] for text in made["errors"] if text.strip()]
    good = [n for n, text in enumerate(made["errors"]) if not text.strip()]
    gaps = [gap for n in good for gap in made["itls"][n]]
    rates = [(made["output_lens"][n] - 1) / sum(made["itls"][n]) for n in good
             if made["output_lens"][n] > 1 and sum(made["itls"][n]) > 0]
    return {"seconds": made["duration"], "tokens": sum(made["output_lens"][n] for n in good),
            "failed": len(prompts) - len(good), "ttft_s": [made["ttfts"][n] for n in good],
            "stream_tok_s": rates, "itl_p50_s": share(gaps, 0.5), "itl_p95_s": share(gaps, 0.95),
            "errors": errors, "prompt_tokens": [made["input_lens"][n] for n in good]}

try:
    import vllm
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest
    parser = getattr(serve, "FlexibleArgumentParser", argparse.ArgumentParser)()
    serve.add_cli_args(parser)
    say(client="vllm bench serve " + str(getattr(vllm, "__version__", "")))
    for number, prompts in enumerate(job["rounds"]):
        if isinstance(prompts, int):
            again = [words(prompts, job["seed"] + str(number))]
            say(cold=one(again, 1), cached=one(again, 1))
        else:
            say(round=one(prompts, job["tokens"]))
    say(end=True)
except BaseException as error:
    told = " ".join(str(error).split())[:400]
    say(error=type(error).__name__ + (": " + told if told else ""))
os._exit(0)
"""
)
