//! Canonical JSON: the text Python's `json.dumps(obj, sort_keys=True, separators=(",", ":"))`
//! prints, so that every language derives the same key.
