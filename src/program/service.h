/* Servers of parameters, as ranks reach them: engines behind one table, as communicators are.
 *
 * A *served piece* is the region of a parameter that a rank has, if servers keep the parameter. The
 * servers have its value and its optimizer's states, and update them. Ranks with the same region of
 * a parameter share one *shard*. Each step, those that hold a term of the gradient's sum *push* it.
 * The servers add the terms in the order of their numbers: the sum has the bits of an all-reduce.
 * Every rank with the region *pulls* the updated value.
 *
 * Steps have numbers, which ascend. A step that is given up and made again has a new number. What
 * was pushed for an earlier one, and not applied, is dropped. */
#ifndef WEFTI_SERVICE_H
#define WEFTI_SERVICE_H

#include "compile/update.h"
#include "device/home.h"
#include "layout/layout.h"

/* Number 0 is the value, the others are the optimizer's states. */
enum { WEFTI_SERVED_PARTS = 5 };

typedef struct wefti_served {
    const char *name;       /* of the parameter */
    weft_desc desc, whole;  /* of the piece; of the parameter */
    wefti_region region;    /* of the piece, in the parameter */
    int32_t terms;          /* of the sum: so many ranks push */
    int32_t term;           /* this rank's number among them; -1: it pushes nothing */
    wefti_update_rule rule; /* the states have the sizes of the piece, if they have the parameter's
                               shape */
    int64_t part_bytes[WEFTI_SERVED_PARTS]; /* 1 + rule.states of them */
    weft_dtype square;                      /* of the gradient's square, for clipping */
} wefti_served;

typedef struct wefti_service wefti_service; /* one rank's side */
typedef struct wefti_shard wefti_shard;     /* a served piece that is bound to its shard */

typedef struct wefti_service_engine {
    const char *name;
    /* Ranks with the same parameter and region share a shard. All of them must say the same about
     * it, and no two have one term. The description is copied, and so is all that it names. Bytes
     * of a new shard are 0. */
    weft_status (*bind)(wefti_service *service, const wefti_served *served, wefti_shard **out);
    /* Begins to push this rank's term of step `number`. The memory keeps it until the wait. */
    weft_status (*push)(wefti_shard *shard, int64_t number, const void *gradient);
    weft_status (*wait_push)(wefti_shard *shard);
    /* The square of the sum, once all terms are there. Blocks. Any rank of the shard may ask. */
    weft_status (*square)(wefti_shard *shard, int64_t number, void *out);
    /* Begins to pull the value that the update of step `number` makes: this rank knows that the
     * step is to be applied, with these scalars (equal on all ranks). The memory gets it by the
     * wait. */
    weft_status (*pull)(wefti_shard *shard, int64_t number, const wefti_step_block *scalars,
                        void *value);
    weft_status (*wait_pull)(wefti_shard *shard);
    /* After a failure, in place of the waits: from now on nothing touches the memory that this rank
     * has pushed or pulls to. Waits for no other rank. */
    void (*give_up)(wefti_shard *shard);
    /* Reads or writes bytes of a part, between steps. Blocks. */
    weft_status (*read)(wefti_shard *shard, int part, int64_t offset, int64_t bytes, void *to);
    weft_status (*write)(wefti_shard *shard, int part, int64_t offset, int64_t bytes,
                         const void *from);
    void (*unbind)(wefti_shard *shard);
    /* All waits, of all ranks of this process, fail with this reason from now on; `failed` as in
     * comm/comm.h. Any thread. mend: after all ranks have stopped, no longer. */
    void (*break_off)(wefti_service *service, int failed, const char *message);
    void (*mend)(wefti_service *service);
    void (*destroy)(wefti_service *service); /* after its shards are unbound */
} wefti_service_engine;

struct wefti_service {
    const wefti_service_engine *engine;
    int32_t rank;
};
struct wefti_shard {
    const wefti_service_engine *engine;
};

static inline void wefti_service_destroy(wefti_service *service) {
    if (service) service->engine->destroy(service);
}

#endif
