! The Fortran module: worlds, collectives, graphs, sessions, and what errors say.
program fortran_test
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    use mpi
    use weft
    implicit none
    integer :: error, rank, size, i, program_number
    integer(int64) :: least
    integer(int64), parameter :: count = 5
    real(real32) :: mine(5), sums(5), x(3, 4), w(2, 3), y(2, 4), b(2)
    real(real32), allocatable :: all(:, :)
    real(real64) :: loss, token
    type(weft_world) :: world
    type(weft_group) :: group
    type(weft_graph) :: graph, broken
    type(weft_session) :: session
    type(weft_session_options) :: options
    type(weft_value) :: v, weight, product

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, size, error)

    call expect(weft_world_from_mpi(MPI_COMM_NULL, world) == WEFT_E_ARG, 'a null communicator is refused')
    call expect(index(weft_error_message(), 'MPI_COMM_NULL') > 0, 'the message names it')
    call expect(weft_status_text(WEFT_E_SHAPE) == 'shapes do not fit', 'texts of statuses')
    call expect(weft_world_from_mpi(MPI_COMM_WORLD, world, wait_seconds=100._real64) >= 0, 'a world')
    call expect(weft_world_rank(world) == rank .and. weft_world_size(world) == size, 'its ranks')
    call expect(size == 1 .or. len(weft_world_communicator(world)) > 0, 'its communicator')

    ! Collectives.
    mine = [(real(rank*10 + i), i=1, 5)]
    allocate (all(5, 0:size - 1))
    call expect(weft_all_gather(world, mine, all, count, WEFT_F32) >= 0, 'all_gather')
    do i = 0, size - 1
        call expect(all(3, i) == real(i*10 + 3), 'what all_gather brings')
    end do
    call expect(weft_all_reduce(world, mine, sums, count, WEFT_F32, WEFT_REDUCE_SUM) >= 0, 'all_reduce')
    call expect(sums(2) == sum(all(2, :)), 'a sum')
    call expect(weft_all_reduce_in_place(world, mine, count, WEFT_F32, WEFT_REDUCE_MAX) >= 0, 'in place')
    call expect(mine(5) == real((size - 1)*10 + 5), 'a maximum')
    least = 50 - rank
    call expect(weft_all_reduce_in_place(world, least, 1_int64, WEFT_I64, WEFT_REDUCE_MIN) >= 0, 'of a scalar')
    call expect(least == 51 - size, 'a minimum')
    if (rank == 0) mine = 7
    call expect(weft_broadcast(world, mine, count, WEFT_F32, 0) >= 0, 'broadcast')
    call expect(all_equal(mine, 7.), 'what it brings')
    token = 0
    if (rank > 0) call expect(weft_recv(world, token, 1_int64, WEFT_F64, rank - 1, 4) >= 0, 'recv')
    token = token + 1
    if (rank + 1 < size) call expect(weft_send(world, token, 1_int64, WEFT_F64, rank + 1, 4) >= 0, 'send')
    call expect(token == rank + 1, 'a token')
    call expect(weft_group_create(world, [0], group) >= 0, 'a group')
    if (rank == 0) call expect(weft_all_reduce(world, mine, sums, count, WEFT_F32, WEFT_REDUCE_SUM, group) >= 0, 'of a group')
    call weft_group_destroy(group)
    call expect(weft_barrier(world) >= 0, 'barrier')

    ! A graph for one device: y = x w + b, forward only.
    call expect(weft_graph_create(graph) >= 0, 'a graph')
    v = weft_input(graph, 'x', WEFT_F32, [4, 3])
    call weft_cell_begin(graph, 'dense')
    weight = weft_param(graph, 'weight', WEFT_F32, [3, 2], WEFT_INIT_ZEROS)
    product = weft_cell_end(graph, weft_linear(graph, v, weight, weft_param(graph, 'bias', WEFT_F32, [2], &
        WEFT_INIT_CONSTANT, 0.5_real64)))
    call weft_output(graph, 'y', weft_scale(graph, product, 2._real64))
    call weft_loss(graph, weft_mse(graph, product, weft_input(graph, 'target', WEFT_F32, [4, 2])))
    call expect(weft_graph_status(graph) >= 0, 'it is good')
    options = weft_session_defaults()
    options%threads = 1
    options%optimizer = WEFT_SGD
    options%seed = 3
    call expect(weft_session_create(graph, options, session) >= 0, 'a session')
    x = reshape([(real(i), i=1, 12)], [3, 4])
    w = reshape([1., 10., 2., 20., 3., 30.], [2, 3])
    y = 0
    call expect(weft_session_write(session, 'dense.weight', w) >= 0, 'write')
    call expect(weft_session_feed(session, 'x', x) >= 0, 'feed')
    call expect(weft_session_feed(session, 'target', y) >= 0, 'feed')
    call expect(weft_session_step(session, 0._real64, loss) >= 0, 'step')
    call expect(weft_session_read(session, 'y', y) >= 0, 'read')
    call expect(y(1, 1) == 2*(1*1 + 2*2 + 3*3 + 0.5) .and. y(2, 4) == 2*(10*(1*10 + 2*11 + 3*12) + 0.5), 'a product')
    call expect(loss > 0, 'a loss')
    call expect(weft_session_read(session, 'dense.bias', b) >= 0, 'read a parameter')
    call expect(b(1) == 0.5, 'its value')
    call expect(weft_session_read(session, 'nothing', b) == WEFT_E_NOT_FOUND, 'an unknown name')
    call expect(index(weft_error_message(), 'nothing') > 0, 'is named')
    call expect(weft_session_feed(session, 'x', b) == WEFT_E_SHAPE, 'a wrong size')
    call expect(weft_session_add(session, graph, program_number) < 0, 'nothing can be added after the first step')
    call weft_session_destroy(session)
    call weft_graph_destroy(graph)

    ! The first error of building is kept.
    call expect(weft_graph_create(broken) >= 0, 'another graph')
    v = weft_input(broken, 'x', WEFT_F32, [4, 3])
    v = weft_relu(broken, weft_matmul(broken, v, v))
    call expect(weft_graph_status(broken) == WEFT_E_SHAPE, 'shapes that do not fit')
    call expect(index(weft_graph_message(broken), 'matmul') > 0, 'are told')
    call weft_graph_destroy(broken)

    call weft_world_leave(world)
    call MPI_Barrier(MPI_COMM_WORLD, error)
    if (rank == 0) print '(i0, a)', size, ' ranks: Fortran has it all'
    call MPI_Finalize(error)

contains

    pure logical function all_equal(a, v)
        real(real32), intent(in) :: a(:), v
        all_equal = .not. any(abs(a - v) > 0)
    end function
    subroutine expect(is_so, what)
        logical, intent(in) :: is_so
        character(len=*), intent(in) :: what
        if (is_so) return
        print '(a, i0, 5a)', 'rank ', rank, ': ', what, ' (', weft_error_message(), ')'
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
