"""Cases of a rig that is measured: bench with speculative decoding, and a soak."""

from __future__ import annotations

import re
import time

import yaml

from deploys.procedures.measure import history
from facts.endpoint.completion import Endpoint
from facts.endpoint.engine_metrics import acceptance, scrape
from lab.gpu import host
from schema.measure.run import Acceptance, BenchRun, SoakRun
from tests.system.gpu.rig_host import PORT, RECIPE, ROOT, UNIT, Rig, tail

# the engine logs what was accepted every ten seconds in which something was
LOGGED_S = 25
# vllm/v1/spec_decode/metrics.py of 0.23
LINE = re.compile(
    r"Mean acceptance length: ([\d.]+),.* Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: ([\d., ]+),"
)
AHEAD = 3
SPECULATIVE = {"method": "ngram_gpu", "num_speculative_tokens": AHEAD, "prompt_lookup_max": 4,
               "prompt_lookup_min": 2}  # fmt: skip


def bench(rig: Rig) -> str:
    """A sweep with n-gram speculation: what was accepted, by position, is what vLLM's log says."""
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["profiles"]["speculative"] = {
        "description": "n-gram speculation", "vllm_serve": {"speculative_config": SPECULATIVE},
    }  # fmt: skip
    RECIPE.write_text(yaml.safe_dump(recipe))
    done = rig.deploy("serve", "profile=speculative")
    assert done.rc == 0, tail(done)
    endpoint = Endpoint(f"http://{host.HOST}:{PORT}", "gpu")
    time.sleep(LOGGED_S)
    before, since = scrape(endpoint), rig.on("date '+%F %T'")
    done = rig.deploy("bench", "profile=speculative", "streams=1,4", "tokens=200", "contexts=512",
                      "rounds=10")  # fmt: skip
    assert done.rc == 0, tail(done)
    run = _newest(rig)
    assert run.complete and run.acceptance, run.doubts
    assert [len(point.rates) for point in run.points] == [10, 10], run.points
    time.sleep(LOGGED_S)
    whole = acceptance(before, scrape(endpoint))
    log = rig.on(f"journalctl -u {UNIT} --since '{since}' -o cat --no-pager")
    logged = _logged([found for line in log.splitlines() if (found := LINE.search(line))])
    assert whole and whole.accepted > 100, f"too little was accepted: {whole}"
    assert (logged.accepted, logged.draft_tokens) == (whole.accepted, whole.draft_tokens)
    # the log rounds its shares of each ten seconds to three places
    pairs = list(zip(logged.unconditional, whole.unconditional, strict=True))
    assert all(abs(one - other) < 0.002 for one, other in pairs), pairs
    other = next((line.strip() for line in done.text.splitlines() if "1 stream by" in line), "")
    assert other.endswith("they agree"), tail(done)
    shares = ", ".join(f"{share:.1%}" for share in run.acceptance.unconditional)
    gpus = [gpu for row in run.machines for sample in row.samples for gpu in sample.gpus]
    assert any(gpu.power_w for gpu in gpus), "no sample has the card's power"
    rates = "; ".join(f"{p.streams} {sum(p.rates) / len(p.rates):.0f} tok/s" for p in run.points)
    return f"{rates}; {other}; accepted {shares} of all drafts, as the log has it"


def _newest(rig: Rig) -> BenchRun:
    path = max((ROOT / history.FOLDER / "gputower").glob("*-bench-*.json"))
    rig.note("document", path.read_text())
    return BenchRun.model_validate_json(path.read_text())


def _logged(lines: list[re.Match[str]]) -> Acceptance:
    """The sums of the log's lines; each has shares of its own drafts."""
    accepted, drafted, drafts = 0, 0, 0.0
    positions = [0.0] * AHEAD
    for line in lines:
        taken, made = int(line[2]), int(line[3])
        # every draft has as many tokens as are asked for
        steps = made / AHEAD
        accepted, drafted, drafts = accepted + taken, drafted + made, drafts + steps
        for position, share in enumerate(line[4].split(",")):
            positions[position] += float(share) * steps
    return Acceptance(
        drafts=round(drafts), draft_tokens=drafted, accepted=accepted,
        per_position=tuple(round(value) for value in positions),
    )  # fmt: skip


def soak(rig: Rig) -> str:
    """A minute at four streams: temperature, power, clock and memory of the card in each sample."""
    rig.serving()
    done = rig.deploy("soak", "profile=speculative", "seconds=60", "streams=4")
    path = max((ROOT / history.FOLDER / "gputower").glob("*-soak-*.json"))
    run = SoakRun.model_validate_json(path.read_text())
    assert run.completed and not run.failed, tail(done)
    gpus = [gpu for row in run.machines for sample in row.samples for gpu in sample.gpus]
    assert len(gpus) >= 10 and all(gpu.power_w and gpu.temp_c for gpu in gpus), gpus[:1]
    verdict = next((line.strip() for line in done.text.splitlines() if "memory: " in line), "")
    assert verdict, tail(done)
    hottest, power = max(gpu.temp_c or 0 for gpu in gpus), max(gpu.power_w or 0 for gpu in gpus)
    return f"{run.completed} answers, {hottest:.0f} C, {power:.0f} W; {verdict}"
