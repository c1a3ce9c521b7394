/* Homes in memory that a test has itself. */
#ifndef WEFT_TEST_MEMORY_HOME_H
#define WEFT_TEST_MEMORY_HOME_H

#include "device/home.h"

/* Keep it as long as the home is used. */
typedef struct memory_home {
    wefti_arena_block block;
    wefti_device_arena arena;
} memory_home;

static inline wefti_home memory_home_of(memory_home *keep, wefti_device *device, void *memory,
                                        int64_t bytes) {
    keep->block = (wefti_arena_block){.memory = memory, .mapped = bytes};
    keep->arena = (wefti_device_arena){.blocks = &keep->block, .count = 1, .bytes = bytes};
    return (wefti_home){device, WEFTI_SPACE_DEVICE, &keep->arena, 0, bytes};
}

#endif
