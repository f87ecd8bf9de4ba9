"""What is kept between processes: compiled programs, within bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.drivers.platform import prune

PROGRAM = """
import jax, jax.numpy as jnp
from sparring.drivers.platform import compile_seconds, prepare
prepare("cpu")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: jnp.linalg.qr(x)[0].sum())(jnp.eye(3)))
"""


def run(cache: str) -> None:
    environment = {**os.environ, "SPARRING_CACHE_DIR": cache}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)


def test_programs_are_kept_where_the_user_says_or_not_at_all(tmp_path):
    run(str(tmp_path))
    (kept,) = (tmp_path / "sparring").iterdir()
    assert any("jit" in file.name for file in kept.iterdir())
    elsewhere = tmp_path / "home"
    environment = {**os.environ, "SPARRING_CACHE_DIR": "", "XDG_CACHE_HOME": str(elsewhere)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)
    assert not elsewhere.exists()


def test_a_folder_that_cannot_be_made_is_no_trouble(tmp_path):
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "SPARRING_CACHE_DIR": str(tmp_path / "file")}
    strict = [sys.executable, "-W", "error", "-c", PROGRAM]
    subprocess.run(strict, env=environment, check=True, capture_output=True)


KILLED = f"""
import os, signal
write = os.write
def half(descriptor, data):
    name = os.readlink(f"/proc/self/fd/{{descriptor}}")
    if "-cache" not in name:
        return write(descriptor, data)
    write(descriptor, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
{PROGRAM}"""


def test_a_program_half_written_is_never_read(tmp_path):
    environment = {**os.environ, "SPARRING_CACHE_DIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert killed.returncode == -9
    (kept,) = (tmp_path / "sparring").iterdir()
    (draft,) = kept.iterdir()
    assert draft.stat().st_size > 0
    assert not draft.name.endswith("-cache")
    for _ in range(2):
        strict = [sys.executable, "-W", "error", "-c", PROGRAM]
        subprocess.run(strict, env=environment, check=True, capture_output=True)
    assert any(file.name.endswith("-cache") for file in kept.iterdir())


def test_the_oldest_programs_go_first(tmp_path: Path):
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path, 250)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["middle", "new"]
    prune(tmp_path / "missing", 0)


THREADS = """
import ctypes, pathlib
import jax.numpy as jnp
from sparring.drivers.platform import prepare
prepare("cpu")
jnp.linalg.eigvalsh(jnp.eye(4)).block_until_ready()  # loads scipy's OpenBLAS
lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
(path,) = {line.split()[-1] for line in lines if "libscipy_openblas-" in line}
print(ctypes.CDLL(path).scipy_openblas_get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("chosen", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_openblas_has_one_thread_unless_the_user_says_otherwise(chosen: dict[str, str], threads: str):
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | chosen
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == threads


ALONE = """
import os, sys
from sparring import launch
from sparring.model import algorithm_class, assemble
algorithm, env, seeds = sys.argv[1], sys.argv[2], tuple(range(int(sys.argv[3])))
plan = launch.plan(algorithm, env, values={"eval_freq": -1})
config, settings = plan.config, plan.settings
parts = assemble(
    algorithm_class(algorithm), env, settings, config, seeds, eval_env=False, device="cpu", alone=True
)
parts.driver.advance(1)
parts.driver.close()
pools = 0
for task in os.listdir("/proc/self/task"):
    try:
        pools += open(f"/proc/self/task/{task}/comm").read().startswith("tf_XLAEigen")
    except (FileNotFoundError, ProcessLookupError):
        continue  # a thread of the seeds that ended in the meantime
print(os.environ.get("PJRT_NPROC"), pools)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no pool to do without")
@pytest.mark.parametrize(
    ("algorithm", "env", "seeds", "given", "threads"),
    [
        ("ppo", "CartPole-v1", 1, None, "1"),
        ("ppo", "CartPole-v1", 2, None, "None"),
        ("dqn", "CartPole-v1", 1, None, "None"),  # 64 × 256 × 256: shared, with one row more
        ("ppo", "CartPole-v1", 1, "2", "2"),
    ],
)
def test_a_small_run_alone_keeps_to_one_thread(algorithm, env, seeds, given, threads):
    environment = {k: v for k, v in os.environ.items() if k != "PJRT_NPROC"}
    if given:
        environment["PJRT_NPROC"] = given
    call = [sys.executable, "-c", ALONE, algorithm, env, str(seeds)]
    told = subprocess.run(call, env=environment, check=True, capture_output=True, text=True).stdout.split()
    assert told[0] == threads
    assert int(told[1]) == (1 if threads == "1" else int(given or os.cpu_count() or 1))


def test_sequences_and_unknown_batches_are_large():
    from sparring.algos.dqn import DQNConfig
    from sparring.algos.gdi import GDIConfig
    from sparring.algos.ppo import PPOConfig
    from sparring.algos.sac import SACConfig
    from sparring.drivers.platform import divided

    assert not divided(PPOConfig(batch_size=64))
    assert not divided(DQNConfig(batch_size=64, net_arch=(128, 256)))
    assert not divided(DQNConfig(batch_size=1, net_arch=()))
    for config in (SACConfig(), DQNConfig(core="gru"), GDIConfig(), object()):
        assert divided(config)
    assert divided(DQNConfig(batch_size=64, net_arch=(256, 256)))  # by a row of zeros
    assert divided(DQNConfig(batch_size=58, net_arch=(256, 256)))
    assert not divided(DQNConfig(batch_size=57, net_arch=(256, 256)))
