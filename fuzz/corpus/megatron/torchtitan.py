# A job for torchtitan 0.3.0. Save it as weft_job.py, and start it by torchrun with
# -m torchtitan.train --module weft_job --config weft_job
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import config_registry, model_registry


def weft_job():
    config = config_registry.llama3_8b()
    config.model_spec = model_registry("8B")
    config.parallelism = ParallelismConfig(
        data_parallel_replicate_degree=4,
        data_parallel_shard_degree=1,
        fsdp_reshard_after_forward="never",
        tensor_parallel_degree=2,
        context_parallel_degree=1,
        enable_sequence_parallel=False,
        expert_parallel_degree=1,
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule="1F1B",
        pipeline_parallel_microbatch_size=2,
    )
    config.training = TrainingConfig(
        global_batch_size=64,
        local_batch_size=16,
        disable_cuda_graphs=True,
        seq_len=8192,
        steps=1000,
        max_norm=1,
        mixed_precision_param="bfloat16",
    )
    config.debug.seed = 1
    config.optimizer = default_adamw(
        lr=0.001,
        betas=(0.9, 0.999),
        eps=1e-08,
        weight_decay=0.01,
    )
    config.lr_scheduler = LRSchedulersContainer.Config(
        warmup_steps=100,
        decay_type="cosine",
        min_lr_factor=0.1,
    )
    config.activation_checkpoint = None
    return config
