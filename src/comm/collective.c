/* Collectives on buffers: each is a transfer (weft/collective.h). */
#include "comm/world.h"

void wefti_collectives_destroy(wefti_collectives *collectives) {
    (void)collectives;
}
