/* The disk tier as a tier (tier.h). */
#pragma once

#include "daemon/tier/tier.h"

extern const struct tier_ops disk_tier_ops; /* of a struct disk */
