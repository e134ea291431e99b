"""Recipes of eugr's spark-vllm-docker and of sparkrun (spark-arena), made into ours."""
