/* What the library is built with: the concrete parts behind the interfaces. */
#ifndef WEFTI_BUILTIN_H
#define WEFTI_BUILTIN_H

#include "graph/graph.h"

const wefti_op_registry *wefti_builtin_ops(void);

#endif
