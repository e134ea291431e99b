"""What a measurement holds, and what several of them say: intervals, comparisons, slopes."""
