/* Servers in the process of the ranks that push and pull: shards behind one lock. Ranks that wait
 * do the work: sums when all terms are there, and updates that some rank pulls. */
#ifndef WEFTI_SERVER_LOCAL_H
#define WEFTI_SERVER_LOCAL_H

#include "program/service.h"

/* Services of `ranks` ranks, each of whose threads has `threads` threads for work, itself among
 * them. out [ranks]; each is destroyed by wefti_service_destroy. */
weft_status wefti_service_local(int32_t ranks, int threads, wefti_service **out) WEFT_CHECKED;

#endif
