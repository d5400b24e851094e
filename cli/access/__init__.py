"""Commands of access: `user`, `acl`, `quota` and `auth`."""
