/* What the trainer needs of a session beyond the public calls. */
#ifndef WEFTI_SESSION_H
#define WEFTI_SESSION_H

#include "exec/exec.h"
#include "weft/session.h"

/* The first program's tensors and where they lie now; valid until the session gets another program.
 */
const wefti_program *wefti_session_program(const weft_session *session, int program);
/* Address of a tensor; starts the session (maps the arena, sets start values) if that has not
 * happened. */
weft_status wefti_session_address(weft_session *session, int program, const wefti_tensor *tensor,
                                  void **out) WEFT_CHECKED;
/* Called before a step updates a tensor (index in program 0). NULL: off. */
void wefti_session_before_update(weft_session *session, wefti_before_update *call, void *context);
wefti_pool *wefti_session_pool(weft_session *session); /* NULL before the session is started */
/* Names what holds memory at the peak: "parameters ... 474.7 MiB, ..." into *out (wefti_free). */
weft_status wefti_session_largest(const weft_session *session, int count, char **out) WEFT_CHECKED;

#endif
