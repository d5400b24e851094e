"""Messages: conversion between the protobuf and the stored form, validation, filters, encodings."""
