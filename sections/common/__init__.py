"""What essays share and no lesson: page > measure, verify, codegen > device."""
