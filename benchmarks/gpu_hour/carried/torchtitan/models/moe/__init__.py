# Copyright (c) Meta Platforms, Inc. and affiliates.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

from .moe import build_moe, FeedForward, MoE, MoEArgs

__all__ = ["FeedForward", "MoE", "MoEArgs", "build_moe"]
