"""Administrative requests of classic tools: mqadmin, the dashboard, exporters."""
