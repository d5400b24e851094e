"""Create the table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first state of the database."""

    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("item", models.CharField(max_length=100)),
                ("state", models.CharField(default="new", max_length=20)),
            ],
        )
    ]
