/* UCX's functions, loaded with dlopen when they are first needed.
 *
 * weft does not link UCX: once loaded, its library takes over signal handlers, puts its own
 * sigaction() before libc's, starts threads and reads its environment, in every program that might
 * use it. With dlopen this happens only in processes that use it. Its symbols do not shadow
 * others, and the signal handlers are put back. */
#ifndef WEFTI_UCX_LOAD_H
#define WEFTI_UCX_LOAD_H

#ifdef WEFT_HAVE_UCX

#define asm __asm__ /* its headers are GNU C, from version 1.18 on */
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>
#undef asm

#include "base/status.h"

#define WEFTI_UCX_LIST(X)                                                                          \
    X(ucp_config_read)                                                                             \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_release)                                                                          \
    X(ucp_init_version)                                                                            \
    X(ucp_cleanup)                                                                                 \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_progress)                                                                         \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_tag_send_nbx)                                                                            \
    X(ucp_tag_recv_nbx)                                                                            \
    X(ucp_request_cancel)                                                                          \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucs_status_string)                                                                           \
    X(ucs_log_push_handler)                                                                        \
    X(ucs_log_pop_handler)

typedef struct wefti_ucx_calls {
#define WEFTI_UCX_ROW(name) __typeof__(&name) name;
    WEFTI_UCX_LIST(WEFTI_UCX_ROW)
#undef WEFTI_UCX_ROW
} wefti_ucx_calls;

/* WEFT_E_NO_IMPL when the library is not there. It stays loaded: UCX does not unload cleanly. */
weft_status wefti_ucx_load(wefti_ucx_calls *out) WEFT_CHECKED;

#endif
#endif
