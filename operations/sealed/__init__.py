"""Copies of backups that leave the rig: encrypted by age, in pieces, in a folder or over sftp."""
