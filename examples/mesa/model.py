"""Schelling's segregation with Mesa: people move if too few of their neighbours are like them."""

from mesa import DataCollector, Model
from mesa.discrete_space import CellAgent, OrthogonalMooreGrid

SIZE, STEPS = 20, 15


class Person(CellAgent):
    def __init__(self, model, cell, kind):
        super().__init__(model)
        self.cell, self.kind = cell, kind

    def share_alike(self):
        neighbours = list(self.cell.neighborhood.agents)
        return sum(other.kind == self.kind for other in neighbours) / len(neighbours) if neighbours else 1.0

    def step(self):
        if self.share_alike() < self.model.threshold:
            self.cell = self.model.grid.select_random_empty_cell()


class Town(Model):
    def __init__(self, threshold, seed):
        super().__init__(seed=seed)  # seeds self.random, from which everything below draws
        self.threshold = threshold
        self.grid = OrthogonalMooreGrid((SIZE, SIZE), torus=True, random=self.random)
        for cell in self.grid.all_cells:
            if self.random.random() < 0.8:
                Person(self, cell, kind=self.random.choice("AB"))
        self.collector = DataCollector({"alike": Town.mean_share_alike})
        self.collector.collect(self)

    def mean_share_alike(self):
        return sum(person.share_alike() for person in self.agents) / len(self.agents)

    def step(self):
        self.agents.shuffle_do("step")
        self.collector.collect(self)


def segregation(params, seed):
    """Return the mean share of neighbours of the same kind, before the first step and after each."""
    town = Town(params["threshold"], seed)
    for _ in range(STEPS):
        town.step()
    return town.collector.get_model_vars_dataframe().rename_axis("step")
