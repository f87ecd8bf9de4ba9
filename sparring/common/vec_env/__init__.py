"""Vector environments with SB3's names."""

from typing import Any

from sparring.common.vec_env.base import VecEnv, VecEnvWrapper, is_vecenv_wrapped, unwrap_vec_wrapper
from sparring.common.vec_env.frame_stack import VecFrameStack
from sparring.common.vec_env.host import DummyVecEnv, HostVecEnv, SubprocVecEnv, as_vec_env
from sparring.common.vec_env.monitor import VecMonitor
from sparring.common.vec_env.normalize import VecNormalize, sync_envs_normalization, unwrap_vec_normalize
from sparring.common.vec_env.video import VecVideoRecorder

__all__ = [
    "DummyVecEnv",
    "HostVecEnv",
    "SubprocVecEnv",
    "VecEnv",
    "VecEnvWrapper",
    "VecFrameStack",
    "VecMonitor",
    "VecNormalize",
    "VecVideoRecorder",
    "as_vec_env",
    "is_vecenv_wrapped",
    "sync_envs_normalization",
    "unwrap_vec_normalize",
    "unwrap_vec_wrapper",
]

INSTEAD = {
    "CloudpickleWrapper": "environment functions travel to workers by their importable name",
    "StackedObservations": "use VecFrameStack, or frame_stack=n in the algorithm",
    "VecCheckNan": "leave it out: every environment's observations and rewards are checked already",
    "VecExtractDictObs": "use a gymnasium.ObservationWrapper around each environment",
    "VecTransposeImage": "leave it out: image networks find the channels themselves",
}


def __getattr__(name: str) -> Any:
    if name in INSTEAD:
        raise ImportError(f"sparring.common.vec_env has no {name}: {INSTEAD[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
