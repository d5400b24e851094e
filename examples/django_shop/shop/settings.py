"""Settings of the project. For production: a secret key of your own, DEBUG = False."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "for development only")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
MIDDLEWARE: list[str] = []
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", Path(__file__).resolve().parent.parent / "db.sqlite3"),
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

COMETMQ_ENDPOINT = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")
