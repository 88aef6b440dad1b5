"""Programs with one planted bottleneck each, their twins without it, and healthy ones that look suspicious."""
