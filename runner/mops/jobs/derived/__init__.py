"""Jobs that take results over from a complete job: retry, extend, rescore (docs/internals/storage.md)."""
