"""Messages between the protobuf form and the stored form: validation, conversion, filters, encodings."""
