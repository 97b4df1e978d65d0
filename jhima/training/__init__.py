"""What train_sft.py and train_rl.py share, and the samples of stage 2."""
