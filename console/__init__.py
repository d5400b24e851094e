"""The web console: pages over the Admin service of a cluster. `cometmq console` serves it.

Starlette serves pages that Jinja2 renders; HTMX and server-sent events keep them live, uPlot draws
curves. A page holds no state on the server. The extra `console` installs the packages.
"""
