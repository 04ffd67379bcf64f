"""What people see: the commands, and what they print. Nothing else imports it."""
