def cached_files(path_or_repo_id, filenames, **_):
    raise OSError(f"{path_or_repo_id} is not in the local cache")
