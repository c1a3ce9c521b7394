/* A world from inside. Made by those who know how its processes found each other (src/launch);
 * used by collectives and sessions. */
#ifndef WEFTI_WORLD_H
#define WEFTI_WORLD_H

#include "comm/comm.h"
#include "weft/world.h"

typedef struct wefti_collectives wefti_collectives; /* comm/collective.c: its bound transfers */

struct weft_world {
    wefti_comm *comm; /* NULL: a world of one */
    int32_t rank, size, hosts;
    int32_t *host; /* [size] */
    char communicator[32];
    wefti_collectives *collectives; /* NULL until the first one */
    /* What a higher floor keeps of it (train/agree.h), and how that ends. */
    void *agreement;
    void (*end_agreement)(void *agreement);
    /* Those who watch over it; called when it is left or given up. Any may be NULL. */
    void *control;
    void (*leave)(void *control); /* waits for the others, then ends */
    void (*fail)(void *control, int failed, const char *message); /* tells the others */
};

/* `host` [size] is copied; comm is taken over, also on failure. */
weft_status wefti_world_create(wefti_comm *comm, int32_t rank, int32_t size, const int32_t *host,
                               weft_world **out) WEFT_CHECKED;
/* comm/collective.c: before the communicator is destroyed. */
void wefti_collectives_destroy(wefti_collectives *collectives);

#endif
