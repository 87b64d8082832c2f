"""Records: the data that regbot stores or passes across a trust boundary. Records are strict, versioned and without
NaN."""
