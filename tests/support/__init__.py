"""What several test modules share: builders of records, repositories, stand-ins."""
