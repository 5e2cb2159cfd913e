"""The machines a plan is for: devices, links, presets, detection and calibration."""
