"""What train_sft.py and train_rl.py share, and the samples of stage 2."""

import os

import torch

# DeepSpeed, which is imported after this package, warns at every start where it has to find out.
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
