"""A vision-language model grown on released weights, SmolLM2-135M-Instruct."""
