from torchtitan.config import Config


def qwen3_moe_debug():
    return Config()
