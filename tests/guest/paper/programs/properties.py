"""Print what code sees of the imitated GPU."""

import json

import torch

properties = torch.cuda.get_device_properties(7)
print(
    json.dumps(
        {
            "name": torch.cuda.get_device_name(),
            "memory": [properties.total_memory, torch.cuda.mem_get_info()[1]],
            "capability": [*torch.cuda.get_device_capability(), properties.major, properties.minor],
            "multiprocessors": properties.multi_processor_count,
            "shared": [properties.shared_memory_per_multiprocessor, properties.shared_memory_per_block_optin],
            "l2": properties.L2_cache_size,
            "warp": properties.warp_size,
            "architectures": [torch.cuda.get_arch_list(), properties.gcnArchName],
            "gpus": torch.cuda.device_count(),
        }
    )
)
